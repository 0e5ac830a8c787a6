"""What happens when it is tried? The only package that names torch and transformers."""
