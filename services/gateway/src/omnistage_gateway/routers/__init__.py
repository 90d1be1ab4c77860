"""One file per endpoint of the API."""
