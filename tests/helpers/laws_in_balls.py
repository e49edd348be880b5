"""The referee's laws of a mechanism that a test has as an object of its class."""

from jaxacct.mechanisms.records import record_of
from jaxacct.verify import statements


def stated(mechanism, relation):
    """The referee's laws of a mechanism, by its record: one for each direction, or one for all."""
    return statements.stated(record_of(mechanism), relation)
