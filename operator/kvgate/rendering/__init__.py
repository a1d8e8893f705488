"""Manifests of an admitted InferenceDeployment: dictionaries, computed from the spec and the assessment alone."""
