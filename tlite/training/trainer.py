"""The compiled core of training: several steps, seeds and devices in one program.

The state is a tree of arrays by name, each with a leading axis of the run's seeds. Devices form a
mesh of ("replica", "data"): seeds are spread over the first axis, and each batch over the second,
as are the arrays of a sharded model (`sharding`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from operator import attrgetter, itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree

from tlite.errors import UserError
from tlite.models.low_rank import merge_low_rank
from tlite.models.parameters import from_named_arrays
from tlite.training.config import TrainingConfig
from tlite.training.loader import DeviceDataset, Loader
from tlite.training.optimizers import check_patterns, make_optimizer, select_trainable
from tlite.training.sharding import (
    FSDP,
    MIN_SHARDED_PARAMETERS,
    DataParallel,
    bytes_per_device,
    check_fits,
    make_mesh,
    out_of_memory,
    partition,
    put,
)
from tlite.training.step import Task, TrainState, init_parameters, train_step


class Trainer:
    """`init`, `train` and `evaluate` of a task.

    The training program is compiled once, by `compile` or the first call of `train`. Data is put on
    the devices then, and the optimizer's state by `init`; `evaluate` needs only the parameters.

    Args:
        source: a pytree of arrays from which `task.draw` takes batches and which is put on the
            devices, or a function (config, mesh) -> `Loader`.
        devices: all devices of all processes by default.

    Raises:
        UserError: a pattern or a group of the config has no effect on the parameters.
    """

    def __init__(
        self, task: Task, config: TrainingConfig, source: Any, devices: list | None = None
    ):
        self.task, self._source, self._compiled_train = task, source, None
        self.model = jax.eval_shape(task.init, jax.random.key(0))
        init = partial(init_parameters, task.init, config)
        try:
            self.shapes = jax.eval_shape(init, jax.random.key(0))
            check_patterns(config, self.shapes)
        except ValueError as error:
            raise UserError(str(error)) from error
        self.num_parameters = sum(leaf.size for leaf in self.shapes.values())
        is_large = self.num_parameters >= MIN_SHARDED_PARAMETERS
        self.sharded = {"auto": is_large, "fsdp": True}.get(config.sharding, False)
        examples = task.buckets.multiple_of if task.buckets else config.batch_size
        self.mesh, self.mesh_warnings = make_mesh(devices or jax.devices(), config, examples)
        self.num_shards = self.mesh.size // self.mesh.shape["replica"]  # shards of a batch
        self.config = config.with_microbatches(self.num_shards)
        self.specs = partition(self.shapes, self.mesh) if self.sharded else {}
        self._strategy = (
            FSDP(self.mesh, self.specs) if self.sharded else DataParallel(self.num_shards)
        )
        # If several processes read the results, every device holds them in full.
        spec = PartitionSpec() if jax.process_count() > 1 else PartitionSpec("replica")
        self._result_sharding = NamedSharding(self.mesh, spec)
        unflatten = from_named_arrays(self.model)
        self._to_model = lambda arrays: unflatten(merge_low_rank(config.low_rank, arrays))
        self._evaluate = jax.jit(
            self._over_mesh(self._sum_batches, PartitionSpec(None, "data")),
            out_shardings=self._result_sharding,
        )

    @cached_property
    def loader(self) -> Loader:
        """Source of batches; arrays in memory are put on the devices here."""
        if callable(self._source):
            return self._source(self.config, self.mesh)
        return DeviceDataset(self._source, self.mesh)

    def init(self, parameters: Mapping[str, ArrayLike] | None = None) -> TrainState:
        """Return the state before the first step, with a leading axis of seeds.

        Args:
            parameters: arrays by name that every seed starts from, without that axis or with it;
                the others are drawn.

        Raises:
            UserError: the model has no such array, or one of another shape.
        """
        start = {}
        for name, array in (parameters or {}).items():
            if (shape := self.abstract_state.parameters.get(name)) is None:
                raise UserError(f"the model has no array {name!r}")
            size = shape.shape[1:]
            if np.shape(array) not in (shape.shape, size, (1, *size)):
                raise UserError(
                    f"{name} must have the shape {size}, or {shape.shape} with the axis of seeds, "
                    f"not {np.shape(array)}"
                )
            array = np.broadcast_to(np.asarray(array, shape.dtype), shape.shape)
            start[name] = put(array, self.mesh, shape.sharding.spec)

        def draw(start):  # XLA does not compute the drawn arrays that are replaced
            return jax.vmap(self._init)(np.int32(self.config.seed_range), start)

        shardings = jax.tree.map(attrgetter("sharding"), self.abstract_state)
        return jax.jit(draw, donate_argnums=0, out_shardings=shardings)(start)

    def _init(self, seed: Int[Array, ""], start: Mapping[str, Array] | None = None) -> TrainState:
        """Return the state of one seed before the first step, with the arrays `start` by name."""
        key = jax.random.key(seed)
        parameters = init_parameters(self.task.init, self.config, key) | (start or {})
        rate = jnp.float32(self.config.learning_rate)
        trained = select_trainable(self.config, parameters)
        optimizer = make_optimizer(self.config, rate).init(trained)
        ema = None if self.config.ema is None else jax.tree.map(jnp.zeros_like, trained)
        return TrainState(parameters, optimizer, key, rate, ema)

    @cached_property
    def abstract_state(self) -> TrainState:
        """Shapes and shardings of the train state; optimizer state is sharded as its parameter."""

        def with_sharding(path, leaf):
            name = getattr(path[-1], "key", None)
            is_like = name in self.specs and leaf.shape[1:] == self.shapes[name].shape
            spec = self.specs[name] if is_like else ()  # Adafactor's means have fewer axes
            sharding = NamedSharding(self.mesh, PartitionSpec("replica", *spec))
            # Not `leaf.update`, which keeps weak types and so changes the program.
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        seeds = jax.ShapeDtypeStruct((self.config.seeds,), jnp.int32)
        state = jax.eval_shape(jax.vmap(self._init), seeds)
        return jax.tree_util.tree_map_with_path(with_sharding, state)

    def place(self, state: TrainState) -> TrainState:
        """Put restored parameters and optimizer state on the devices, and make the seeds' keys."""
        # Keys are created on the devices: they can't be passed between processes.
        sharding = self.abstract_state.key.sharding
        seeds = np.int32(self.config.seed_range)
        keys = jax.jit(lambda: jax.vmap(jax.random.key)(seeds), out_shardings=sharding)()
        rates = np.full(self.config.seeds, self.config.learning_rate, np.float32)
        placed = jax.tree.map(
            lambda a, to: put(a, self.mesh, to.sharding.spec),
            state._replace(key=None, learning_rate=rates),
            self.abstract_state._replace(key=None),
        )
        return placed._replace(key=keys)

    def dispatch(
        self, state: TrainState, step: int, num_steps: int
    ) -> tuple[TrainState, dict[str, Array]]:
        """Start steps `step` to `step + num_steps` and return without waiting for the devices.

        The program must be compiled.

        Args:
            state: donated.
            num_steps: at most `loader.max_steps_per_call`.

        Returns:
            The new state, and the losses for `read`.
        """
        data = self.loader.batches(step, num_steps)
        with out_of_memory("a step of training"):
            numbers = put((np.int32(step), np.int32(num_steps)), self.mesh, PartitionSpec())
            return self._compiled_train(state, data, *numbers)

    def read(
        self, history: dict[str, Array], num_steps: int
    ) -> dict[str, Float[np.ndarray, "N M"]]:
        """Wait for the losses of `dispatch`; return them by step and seed."""
        with out_of_memory("a step of training"):
            history = jax.device_get(history)
        return {name: means[:, :num_steps].T for name, means in history.items()}

    def train(
        self, state: TrainState, step: int, num_steps: int
    ) -> tuple[TrainState, dict[str, Float[np.ndarray, "N M"]]]:
        """Run steps `step` to `step + num_steps`, of a program that is compiled at the first call.

        Returns:
            The new state, and the losses by name, step and seed.
        """
        self.compile(state)
        state, history = self.dispatch(state, step, num_steps)
        return state, self.read(history, num_steps)

    def lower(self) -> jax.stages.Lowered:
        """Return the training program before compilation."""
        shardings = jax.tree.map(attrgetter("sharding"), self.abstract_state)
        function = jax.jit(
            self._over_mesh(self._run_steps, self.loader.specs, PartitionSpec(), PartitionSpec()),
            donate_argnums=0,
            out_shardings=(shardings, self._result_sharding),
        )
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        number = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
        with self._context():
            return function.lower(self.abstract_state, self.loader.shapes, number, number)

    def compile(self, state: TrainState | None = None) -> None:
        """Compile the training program unless it is compiled.

        Args:
            state: a state that lies on the devices already.

        Raises:
            OutOfMemory: training needs more memory than is free.
        """
        if self._compiled_train is not None:
            return
        if state is None:
            self.check_fits()
        compiled = self.lower().compile()
        if memory := compiled.memory_analysis():
            needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
            needed += memory.output_size_in_bytes - memory.alias_size_in_bytes
            needed -= bytes_per_device((state, self.loader.arrays))  # allocated already
            batch = f"training with a batch of {self.config.batch_size:,}"
            check_fits(batch, needed, self.mesh.local_devices)
        self._compiled_train = compiled

    def evaluate(
        self,
        parameters: dict[str, Float[Array, "M ..."]],
        batches: Any,
        *,
        by_example: bool = False,
    ) -> PyTree:
        """Return the sums (M, ...) of `task.evaluate` over batches (N, B, ...).

        Args:
            batches: B must be a multiple of `num_shards`.
            by_example: return the sums of each example (M, N * B) instead.
        """
        with out_of_memory("a batch of the evaluation"), self._context():
            batches = put(batches, self.mesh, PartitionSpec(None, "data"))
            sums, example_sums = jax.device_get(self._evaluate(parameters, batches))
        if not by_example:
            return sums
        return jax.tree.map(lambda a: a.reshape(len(a), -1), example_sums)

    def models(self, parameters: dict[str, Float[Array, "M ..."]]) -> list:
        """Return a model for each seed.

        A sharded model stays divided over the devices of a single process; each of several
        processes gets all arrays.
        """
        seeds = range(self.config.seeds)
        if self.sharded and jax.process_count() == 1:
            shardings = {name: NamedSharding(self.mesh, spec) for name, spec in self.specs.items()}
            select = jax.jit(
                lambda arrays, i: {name: a[i] for name, a in arrays.items()},
                out_shardings=shardings,
            )
            return [self._to_model(select(parameters, i)) for i in seeds]
        host = self.on_host(parameters)
        each = [{name: np.array(a[i]) for name, a in host.items()} for i in seeds]
        return [self._to_model(arrays) for arrays in jax.device_put(each)]  # runs no program

    def on_host(self, parameters: dict[str, Array]) -> dict[str, np.ndarray]:
        """Return the arrays in full; all processes must call it if one is sharded over them."""
        gather = jax.jit(lambda a: a, out_shardings=NamedSharding(self.mesh, PartitionSpec()))

        def to_host(a):
            is_local = a.is_fully_addressable or a.is_fully_replicated
            return np.asarray(a if is_local else gather(a))

        return {name: to_host(a) for name, a in parameters.items()}

    def check_fits(self) -> None:
        """Raise a `UserError` if the state, its gradients and the data need more than is free.

        Nothing is compiled or allocated. Called by `compile`; returns at once if the program is
        already compiled.
        """
        if self._compiled_train is not None:
            return
        number = f"{self.config.seeds:,} x " if self.config.seeds > 1 else ""
        state = self.abstract_state
        is_allocated = callable(self._source) or "loader" in self.__dict__
        check_fits(
            f"training {number}{self.num_parameters:,} parameters",
            bytes_per_device((state, select_trainable(self.config, state.parameters))),  # gradients
            self.mesh.local_devices,
            replicated=0 if is_allocated else sum(a.nbytes for a in jax.tree.leaves(self._source)),
        )

    def _over_mesh(self, function: Callable, *in_specs: PyTree) -> Callable:
        """Wrap a function of a state and other arguments in `shard_map`.

        All axes of the mesh are mapped for replicated models. For sharded models it is the axis of
        seeds alone; GSPMD partitions the rest.
        """
        axes = {"replica"} if self.sharded else set(self.mesh.axis_names)
        if self.sharded:
            if self.mesh.shape["replica"] == 1:
                return function
            in_specs = jax.tree.map(
                lambda spec: PartitionSpec(*(a if a == "replica" else None for a in spec)), in_specs
            )
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(PartitionSpec("replica"), *in_specs),
            out_specs=PartitionSpec("replica"),
            axis_names=axes,
            check_vma=False,
        )

    @contextmanager
    def _context(self) -> Iterator[None]:
        """Trace matrix products in the run's precision, and sharded models on the mesh."""
        is_exact = self.config.precision == "float32"
        precision = jax.default_matmul_precision("float32") if is_exact else nullcontext()
        with precision, jax.set_mesh(self.mesh) if self.sharded else nullcontext():
            yield

    def _run_steps(self, state: TrainState, data: PyTree, first: Array, num_steps: Array) -> tuple:
        """Return the state after the steps from `first` on, and their losses (M, N) (traced)."""
        loader = self.loader
        # Seeds run in turn if the task draws batches of several shapes: `vmap` computes them all.
        is_sequential = self.task.buckets is not None and loader.seed_axis is None

        @partial(jax.jit, inline=True)  # traced once, for its shapes and in the loop
        def step(state, data, number):
            update = partial(
                train_step, self.task, self.config, self._to_model, self._strategy, loader
            )
            return map_seeds(update, loader.seed_axis, is_sequential, state, data, number)

        def body(index, carry):
            state, history = carry
            state, means = step(state, loader.at_step(data, index), first + index)
            history = {name: history[name].at[:, index].set(means[name]) for name in history}
            return state, history

        _, means = jax.eval_shape(step, state, loader.at_step(data, 0), first)
        history = {
            name: jnp.zeros((*mean.shape, loader.max_steps_per_call), mean.dtype)
            for name, mean in means.items()
        }
        # A loop with a bound known at run time: `lax.scan` would compile anew for another length.
        return jax.lax.fori_loop(0, num_steps, body, (state, history))

    def _sum_batches(self, parameters, batches):
        """Return the sums of `task.evaluate` over all batches, and those of each example."""
        strategy = self._strategy

        def evaluate(parameters, batches):
            model = self._to_model(strategy.gather_params(parameters))

            def evaluate_batch(batch):
                scores = self.task.evaluate(model, strategy.constrain_batch(batch))
                by_example = jax.tree.map(lambda a: a.reshape(len(a), -1).sum(1), scores)
                return jax.tree.map(lambda a: a.sum(0), scores), by_example

            sums, by_example = jax.lax.map(evaluate_batch, batches)
            sums = strategy.psum(jax.tree.map(lambda a: a.sum(0), sums))
            return sums, strategy.all_gather(by_example)

        return map_seeds(evaluate, None, False, parameters, batches)


def map_seeds(
    function: Callable, data_axis: int | None, is_sequential: bool, state: PyTree, data, *others
) -> PyTree:
    """Map `function(state, data, *others)` over the seeds, the leading axis of `state`.

    Args:
        data_axis: axis of `data` for the seeds; None if they share it.
        is_sequential: compute one seed after the other.
    """
    if is_sequential:
        return jax.lax.map(lambda one: function(one, data, *others), state)
    if jax.tree.leaves(state)[0].shape[0] > 1:
        axes = 0, data_axis, *(None for _ in others)
        return jax.vmap(function, in_axes=axes)(state, data, *others)
    first = partial(jax.tree.map, itemgetter(0))  # vmap over one seed is slower
    data = data if data_axis is None else first(data)
    return jax.tree.map(lambda a: a[None], function(first(state), data, *others))
