"""What a service is: the `LLMService` that people write, as values. Reading, checking and writing it are in here too; nothing does I/O."""
