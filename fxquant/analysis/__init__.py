"""Reports on quantized models: which layer does harm, what each costs alone, and where the time goes."""
