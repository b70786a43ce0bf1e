"""What privacy costs: standard models of LensKit and Surprise, without any, on our splits."""
