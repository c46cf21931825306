"""A model that answers -> a web server that many may ask at once.

In: functions that check and answer rows of texts (serve.py has them for each kind of model).
Out: JSON over HTTP, a page for people, counters for Prometheus.  No TensorFlow.

  batching  rows of all requests that wait -> joined predictions in a thread of their own
  server    HTTP: what is refused, what is answered, how it ends (tornado, prometheus_client)
  page.html what a person sees at /
"""

__all__ = ["batching", "server"]  # for the script
