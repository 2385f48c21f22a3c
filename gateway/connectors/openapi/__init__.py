"""OpenAPI definitions of any version become tools; see `build` for the straight line."""

from gateway.connectors.openapi.build import build_openapi

__all__ = ["build_openapi"]
