"""Property tests are judged by what holds, never by how fast a busy machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile("messenger", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("messenger")
