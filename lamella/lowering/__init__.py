"""From one level to the next: one module an arrow."""
