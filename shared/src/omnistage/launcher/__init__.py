"""The launcher: starts broker, tensor server and services as processes of one machine, and keeps them running."""
