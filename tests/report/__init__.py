"""Tests of the report: schema, round trip, JSON and HTML."""
