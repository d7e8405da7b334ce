"""Tests of what generates the site, without a browser."""
