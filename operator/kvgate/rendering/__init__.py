"""What an admitted InferenceDeployment becomes in the cluster: dictionaries, computed from the spec and the assessment alone."""
