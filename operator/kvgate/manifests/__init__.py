"""Readers for files and streams: documents with positions, and what is judged in them."""

from kvgate.documents.paths import read_documents
from kvgate.documents.positions import Broken, Position
from kvgate.documents.reading import Document
from kvgate.manifests.inputs import InputDocuments, Subject, read_manifests

__all__ = ["Broken", "Document", "InputDocuments", "Position", "Subject", "read_documents", "read_manifests"]
