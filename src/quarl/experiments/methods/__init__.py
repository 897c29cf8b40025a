"""How long things take: measured side by side, so that a slow moment of the machine meets all alike."""
