"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: how long an example takes says nothing about whether it is right.
settings.register_profile("vramp", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
settings.load_profile("vramp")
