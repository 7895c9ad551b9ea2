"""BAGEL: one language model that reads texts and images, thinks, and draws by a flow."""
