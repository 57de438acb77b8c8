"""What an engine expects of a request that comes: when its first token is there, and its end."""

from quire.engine.forecast.forecasts import Forecasts, Grade
from quire.engine.forecast.outlook import Expected

__all__ = ["Expected", "Forecasts", "Grade"]
