"""Console scripts of the exporter. Only the standard library is imported, so that missing libraries can be reported."""

from typing import NoReturn

from txport.runtime.entry import run_command


def export() -> NoReturn:
    """Run tx-export."""
    run_command("txport.exporter.export_command", extra="export")


def verify() -> NoReturn:
    """Run tx-verify."""
    run_command("txport.exporter.verify_command", extra="ort")


def build() -> NoReturn:
    """Run tx-build."""
    run_command("txport.exporter.build_command", extra="trt")


def get() -> NoReturn:
    """Run tx-get."""
    run_command("txport.exporter.hub.get_command", extra="hub")


def push() -> NoReturn:
    """Run tx-push."""
    run_command("txport.exporter.hub.push_command", extra="hub")
