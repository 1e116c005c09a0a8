"""What a ps and a worker process have in common: settings, signals, logs, health and metrics."""
