"""The process that reconciles: kopf watches, one level-based function decides and acts."""
