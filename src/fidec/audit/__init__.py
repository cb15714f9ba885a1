"""How far a trained policy has moved from its behaviour model."""
