"""What `phantora calibrate` measures and how. The only part of `compute` that imports torch, and only when used."""
