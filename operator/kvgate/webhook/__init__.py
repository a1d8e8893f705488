"""The admission door: an HTTPS server that answers AdmissionReviews from the catalogues and the request alone."""
