"""The commands people type: `lamella-opt` over IR files, `lamella` over models."""
