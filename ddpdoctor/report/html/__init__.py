"""The report as one self-contained HTML page. Importing this package does not import jinja2."""
