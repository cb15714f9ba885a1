"""What a user sees in a terminal."""
