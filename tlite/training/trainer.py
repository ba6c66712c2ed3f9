"""The compiled core of training: many steps a call, several models at once, over several devices.

The members of a run (seeds, learning rates) are the rows of one matrix of parameters (M, P).
Devices form a mesh of ("member", "data"): members are spread over them first, then each batch.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from tlite.memory import check_fits, out_of_memory
from tlite.training.config import TrainingConfig
from tlite.training.optimizer import make_optimizer
from tlite.training.step import INIT, Member, Task, fold_in, train_step

MAX_STEPS_PER_CALL = 1000
LARGE_FOR_A_CORE = 4_000_000  # parameters
PARAMETER_BYTES = 16  # itself, its gradient and Adam's two means, in float32


class Trainer:
    """`init`, `train` and `evaluate` for a task, each compiled once.

    Args:
        data: a pytree of arrays that `task.draw` takes batches from; it lives on the devices.
        devices: all of this process's unless given.
    """

    def __init__(self, task: Task, config: TrainingConfig, data: Any, devices: list | None = None):
        self.task, self.config = task, config
        self.model = jax.eval_shape(task.init, jax.random.key(0))
        self.num_parameters = sum(leaf.size for leaf in jax.tree.leaves(self.model))
        self.mesh = make_mesh(
            devices or jax.local_devices(),
            config.num_members,
            config.batch_size,
            self.num_parameters,
        )
        number = f"{config.num_members:,} x " if config.num_members > 1 else ""
        check_fits(
            f"training {number}{self.num_parameters:,} parameters",
            config.num_members // self.mesh.shape["member"] * self.num_parameters * PARAMETER_BYTES,
            list(self.mesh.devices.flat),
        )
        self._optimizer = make_optimizer(config, self.model)
        self._unravel = make_unravel(self.model)
        self._member_axis = NamedSharding(self.mesh, PartitionSpec("member"))
        self._data = jax.device_put(data, NamedSharding(self.mesh, PartitionSpec()))
        self._compiled_train = None
        self._evaluate = jax.jit(
            self._shard(self._evaluate_here, (PartitionSpec("member"), PartitionSpec(None, "data")))
        )

    def init(self) -> Member:
        """The members before their first step."""
        return jax.jit(self._init, out_shardings=self._member_axis)()

    def member_shapes(self) -> Member:
        """What `init` gives, as shapes and types: nothing is compiled or computed."""
        return jax.eval_shape(self._init)

    def place(self, members: Member) -> Member:
        """Restored parameters and optimizer states on the devices, with the members' own keys."""
        seeds, rates = map(jnp.array, zip(*self.config.members, strict=True))
        keys = jax.vmap(jax.random.key)(seeds)
        members = members._replace(key=keys, learning_rate=rates)
        return jax.device_put(members, self._member_axis)

    def _init(self) -> Member:
        def member(seed, learning_rate):
            key = jax.random.key(seed)
            parameters = ravel_pytree(self.task.init(fold_in(key, INIT)))[0]
            return Member(parameters, self._optimizer.init(parameters), key, learning_rate)

        seeds, rates = map(jnp.array, zip(*self.config.members, strict=True))
        return jax.vmap(member)(seeds, rates)

    def train(
        self, members: Member, step: int, num_steps: int
    ) -> tuple[Member, dict[str, Float[np.ndarray, "N M"]]]:
        """Steps `step` to `step + num_steps`, at most `MAX_STEPS_PER_CALL`; uses `members` up.

        Returns:
            The new members, and each of the task's losses by step and member.
        """
        self.compile(members)
        with out_of_memory("a step of training"):
            members, history = self._compiled_train(
                members, self._data, jnp.int32(step), jnp.int32(num_steps)
            )
            history = jax.device_get(history)
        return members, {name: means[:, :num_steps].T for name, means in history.items()}

    def compile(self, placed: Member | None = None) -> None:
        """Compile the training program, ahead of time: there can't be a second compilation.

        Args:
            placed: members that lie on the devices already.

        Raises:
            UserError: it would need more memory than there is.
        """
        if self._compiled_train is not None:
            return
        specs = PartitionSpec("member"), PartitionSpec(), PartitionSpec(), PartitionSpec()
        function = jax.jit(self._shard(self._train_here, specs), donate_argnums=0)
        members = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self._member_axis),
            self.member_shapes(),
        )
        compiled = function.lower(members, self._data, jnp.int32(0), jnp.int32(0)).compile()
        if memory := compiled.memory_analysis():
            held = _bytes(self._data)  # allocated already
            if placed is not None:
                held += _bytes(placed._replace(key=None)) // self.mesh.shape["member"]
            needed = memory.argument_size_in_bytes - held + memory.temp_size_in_bytes
            needed += memory.output_size_in_bytes - memory.alias_size_in_bytes
            size = f"a batch of {self.config.batch_size:,}"
            check_fits(f"training with {size}", needed, list(self.mesh.devices.flat))
        self._compiled_train = compiled

    def evaluate(self, parameters: Float[Array, "M P"], batches: Any) -> PyTree:
        """Sums of `task.evaluate` over batches (N, B, ...); results begin with an axis of members.

        B must be a multiple of the mesh's "data" axis.
        """
        with out_of_memory("a batch of the evaluation"):
            return jax.device_get(self._evaluate(parameters, batches))

    def models(self, parameters: Float[Array, "M P"]) -> list:
        """The members as models."""
        return [self._unravel(jnp.asarray(row)) for row in jax.device_get(parameters)]

    def _shard(self, function: Callable, in_specs: tuple) -> Callable:
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=PartitionSpec("member"),
            check_vma=False,
        )

    def _train_here(self, members: Member, data, start, num_steps):
        step_function = over_members(
            partial(
                train_step,
                self.task,
                self.config,
                self._optimizer,
                self._unravel,
                num_shards=self.mesh.shape["data"],
            ),
            in_turn=self.task.buckets is not None,
        )

        def body(index, carry):
            members, history = carry
            members, means = step_function(members, data, start + index)
            history = {name: history[name].at[:, index].set(means[name]) for name in history}
            return members, history

        _, means = jax.eval_shape(step_function, members, data, start)
        history = {
            name: jnp.zeros((*mean.shape, MAX_STEPS_PER_CALL), mean.dtype)
            for name, mean in means.items()
        }
        # A loop with a bound known at run time: `lax.scan` would compile anew for another length.
        return jax.lax.fori_loop(0, num_steps, body, (members, history))

    def _evaluate_here(self, parameters, batches):
        def evaluate(parameters, batches):
            model = self._unravel(parameters)
            sums = jax.lax.map(lambda batch: self.task.evaluate(model, batch), batches)
            return jax.tree.map(lambda a: jax.lax.psum(a.sum(0), "data"), sums)

        return over_members(evaluate)(parameters, batches)


def _bytes(tree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def over_members(function: Callable, *, in_turn: bool = False) -> Callable:
    """`jax.vmap` over the first argument's leading axis; without its cost for a single member.

    With `in_turn` one member comes after the other: where they take different branches, `vmap`
    would compute every branch for each.
    """

    def mapped(members, *others):
        if in_turn:
            return jax.lax.map(lambda member: function(member, *others), members)
        if jax.tree.leaves(members)[0].shape[0] > 1:
            return jax.vmap(function, in_axes=(0,) + (None,) * len(others))(members, *others)
        result = function(jax.tree.map(lambda a: a[0], members), *others)
        return jax.tree.map(lambda a: a[None], result)

    return mapped


def make_mesh(devices: list, num_members: int, batch_size: int, num_parameters: int) -> Mesh:
    """As many of the devices as divide the members, then the batch, evenly.

    The batch of a large model is not divided over a CPU's cores: there each product keeps all of
    them busy by itself, and each device would update every parameter (experiments/LOG.md,
    2026-11-21).
    """
    by_member = math.gcd(len(devices), num_members)
    large = devices[0].platform == "cpu" and num_parameters > LARGE_FOR_A_CORE
    by_data = 1 if large else math.gcd(len(devices) // by_member, batch_size)
    grid = devices[: by_member * by_data]
    return Mesh(np.array(grid).reshape(by_member, by_data), ("member", "data"))


def make_unravel(model) -> Callable[[Float[Array, "P"]], Any]:
    """The inverse of `ravel_pytree` for models like this one (shapes are enough)."""
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), model)
    return ravel_pytree(zeros)[1]
