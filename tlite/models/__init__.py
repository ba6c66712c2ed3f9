"""Whole models: functions of tokens, built from blocks."""

from tlite.models.generator import GeneratorConfig, TransformerGenerator
