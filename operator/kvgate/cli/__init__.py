"""The command line: translates what the engine says; starts without kopf, kubernetes, aiohttp and prometheus_client."""
