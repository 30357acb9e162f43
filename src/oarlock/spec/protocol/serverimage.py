"""The server's image as tasks find it: its Dockerfile puts everything there."""

PYTHON = "/opt/oarlock/venv/bin/python"
"""The interpreter that has Oarlock's packages."""
