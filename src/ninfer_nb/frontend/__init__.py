"""Text in, text out: tokenizer, chat template, conversations, output decoding and tool calls. Knows nothing of models."""
