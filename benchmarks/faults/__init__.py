"""Two faults at once: real parties and a real run, broken twice, must end in the same result or in one clear error."""
