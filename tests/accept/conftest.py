"""Acceptances leave their folders where the test is."""

from tests.run.conftest import in_a_folder_of_its_own

__all__ = ["in_a_folder_of_its_own"]  # a fixture
