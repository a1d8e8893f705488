"""The command line: translates what the engine says; starts without kubernetes, aiohttp and prometheus_client."""
