"""Text in, text out: tokenizer, chat template, conversations, output decoding, tool calls. Knows nothing of models."""
