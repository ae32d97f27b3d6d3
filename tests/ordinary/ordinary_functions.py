"""A module beside the applications, with functions for workers."""

from __future__ import annotations

import pandas as pd
from pyspark.sql.functions import pandas_udf, udf


@udf
def initial(text: str) -> str:
    return text[0]


@pandas_udf("int")
def size(texts: pd.Series) -> pd.Series:
    return texts.str.len()
