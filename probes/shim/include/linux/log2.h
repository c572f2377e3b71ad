/* Included by bcc; nothing of it is used by tracepoint programs. */
