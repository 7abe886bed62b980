"""What runs in the user's processes. It must never hurt its host: every failure is counted and told, none is raised."""
