"""What deploys environments: behind a gateway, one server alone, or as an installed package does it."""
