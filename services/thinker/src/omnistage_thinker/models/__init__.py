"""Model families of the thinker, behind `omnistage.ar.runner.LogitsModel`, and how checkpoints are read."""
