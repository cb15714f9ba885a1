"""The report: one HTML file about one run, several runs, or a suite. It needs no network and no other file."""

from fidec.report.page.write import Extra, report_runs, write_report

__all__ = ["Extra", "report_runs", "write_report"]
