"""The compiled core of training: many steps a call, several models at once, over many devices.

The state is a tree of arrays by name, each with a leading axis of the run's replicas, one
for each seed. Devices form a mesh of ("replica", "data", "model"): replicas are spread over them
first, then each batch, then, of a large model, each array (`placement`).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree

from tlite.errors import UserError
from tlite.models.parameters import from_named_arrays, named_arrays
from tlite.models.sharding import BATCH_AXES
from tlite.training.config import TrainingConfig
from tlite.training.loader import Resident, Streamed
from tlite.training.sharding import (
    FSDP,
    DataParallel,
    bytes_per_device,
    check_fits,
    is_sharded,
    make_mesh,
    mesh_warnings,
    out_of_memory,
    partition,
    put,
)
from tlite.training.step import (
    INIT,
    Task,
    TrainState,
    fold_in,
    make_optimizer,
    train_step,
)


class Trainer:
    """`init`, `train` and `evaluate` for a task, each compiled once, when it is called for.

    What trains needs memory for the optimizer and the data, what evaluates for the parameters.

    Args:
        data: a pytree of arrays that `task.draw` takes batches from, and which lies on the
            devices; or (config, mesh) -> a feed.
        devices: those of all processes unless given.

    Raises:
        UserError: the config's label smoothing is not the task's.
    """

    def __init__(self, task: Task, config: TrainingConfig, data: Any, devices: list | None = None):
        if config.label_smoothing != task.label_smoothing:
            raise UserError(
                f"label_smoothing is {config.label_smoothing} in the config, but "
                f"{task.label_smoothing} in the task: give the task the same label_smoothing"
            )
        self.task = task
        self.model = jax.eval_shape(task.init, jax.random.key(0))
        self.shapes = named_arrays(self.model)
        self.num_parameters = sum(leaf.size for leaf in self.shapes.values())
        examples = task.buckets.multiple_of if task.buckets else config.batch_size
        devices = devices or jax.devices()
        self.mesh = make_mesh(devices, config, self.num_parameters, examples)
        self.mesh_warnings = mesh_warnings(len(devices), self.mesh, config)
        self.num_shards = self.mesh.size // self.mesh.shape["replica"]  # parts of a batch
        self.config = config = config.on_devices(self.num_shards)
        self.sharded = is_sharded(config, self.num_parameters)
        self.specs = partition(self.shapes, self.mesh) if self.sharded else {}
        self._strategy = DataParallel(self.num_shards)
        if self.sharded:
            self._strategy = FSDP(self.mesh, self.specs)
        # Of several processes each can read the losses: they lie on every device.
        spec = PartitionSpec() if jax.process_count() > 1 else PartitionSpec("replica")
        self._of_results = NamedSharding(self.mesh, spec)
        self._to_model = from_named_arrays(self.model)
        self._data = data
        self._compiled_train = None
        self._evaluate = jax.jit(
            self._over_mesh(self._evaluate_here, PartitionSpec(None, BATCH_AXES)),
            out_shardings=self._of_results,
        )

    @property
    def _resident_bytes(self) -> int:
        """Bytes of the data that lies on the devices and is not allocated yet."""
        if callable(self._data) or "feed" in self.__dict__:
            return 0
        return sum(a.nbytes for a in jax.tree.leaves(self._data))

    @cached_property
    def feed(self) -> Any:
        """What training reads: data lies on the devices from here on."""
        config, data = self.config, self._data
        return data(config, self.mesh) if callable(data) else Resident(data, self.mesh)

    def init(self, parameters: Mapping[str, ArrayLike] | None = None) -> TrainState:
        """Return the state before the first step, with a leading axis of seeds.

        Args:
            parameters: arrays by name that every seed starts from, without that axis or with it;
                the others are drawn.

        Raises:
            UserError: not enough memory.
        """
        self.check_fits()
        start = parameters or {}

        def drawn(state):
            missing = {n: a for n, a in state.parameters.items() if n not in start}
            return state._replace(parameters=missing)

        # Only what is returned is computed.
        state = jax.jit(lambda: drawn(self._init()), out_shardings=drawn(self._shardings()))()
        for name, array in start.items():
            shape = self.replica_shapes.parameters[name]
            array = np.broadcast_to(np.asarray(array, shape.dtype), shape.shape)
            state.parameters[name] = put(array, self.mesh, shape.sharding.spec)
        return state._replace(parameters={name: state.parameters[name] for name in self.shapes})

    @cached_property
    def replica_shapes(self) -> TrainState:
        """What `init` gives, as shapes, types and where they lie: nothing is computed.

        An optimizer's arrays by parameter lie as the parameters do.
        """

        def placed(path, leaf):
            names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
            spec = self.specs.get(names[-1], ()) if names else ()
            sharding = NamedSharding(self.mesh, PartitionSpec("replica", *spec))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return jax.tree_util.tree_map_with_path(placed, jax.eval_shape(self._init))

    def _shardings(self) -> TrainState:
        return jax.tree.map(lambda leaf: leaf.sharding, self.replica_shapes)

    def place(self, replicas: TrainState) -> TrainState:
        """Restored parameters and optimizer states on the devices, with the replicas' own keys."""
        # Made where they lie: a key can't be handed over between processes.
        of_replicas = NamedSharding(self.mesh, PartitionSpec("replica"))
        keys = jax.jit(lambda: jax.vmap(jax.random.key)(self._seeds()), out_shardings=of_replicas)()
        rates = jnp.full(self.config.seeds, self.config.learning_rate, jnp.float32)
        replicas = replicas._replace(key=None, learning_rate=rates)
        there = self._shardings()._replace(key=None)
        placed = jax.tree.map(lambda a, to: put(a, to.mesh, to.spec), replicas, there)
        return placed._replace(key=keys)

    def _init(self) -> TrainState:
        def replica(seed):
            key = jax.random.key(seed)
            parameters = named_arrays(self.task.init(fold_in(key, INIT)))
            state = make_optimizer(self.config).init(parameters)
            return TrainState(parameters, state, key, jnp.float32(self.config.learning_rate))

        return jax.vmap(replica)(self._seeds())

    def _seeds(self) -> Int[Array, "M"]:
        return jnp.arange(self.config.seed_range.start, self.config.seed_range.stop)

    def train(
        self, state: TrainState, step: int, num_steps: int
    ) -> tuple[TrainState, dict[str, Float[np.ndarray, "N M"]]]:
        """`dispatch`, then `read`: train and wait for the losses."""
        state, history = self.dispatch(state, step, num_steps)
        return state, self.read(history, num_steps)

    def dispatch(
        self, state: TrainState, step: int, num_steps: int
    ) -> tuple[TrainState, dict[str, Array]]:
        """Dispatch steps `step` to `step + num_steps` and return at once; donates `state`.

        Args:
            num_steps: at most `feed.most_steps`.

        Returns:
            The new state, and the history for `read`, arrays on the devices.
        """
        self.compile(state)
        data = self.feed.at(step, num_steps)
        with out_of_memory("a step of training"):
            numbers = put((np.int32(step), np.int32(num_steps)), self.mesh, PartitionSpec())
            return self._compiled_train(state, data, *numbers)

    def read(
        self, history: dict[str, Array], num_steps: int
    ) -> dict[str, Float[np.ndarray, "N M"]]:
        """Wait for a dispatched call and return each of the task's losses by step and seed."""
        with out_of_memory("a step of training"):
            history = jax.device_get(history)
        return {name: means[:, :num_steps].T for name, means in history.items()}

    def lower(self) -> Any:
        """The training program, not compiled yet."""
        function = jax.jit(
            self._over_mesh(self._train_here, self.feed.specs, PartitionSpec(), PartitionSpec()),
            donate_argnums=0,
            out_shardings=(self._shardings(), self._of_results),
        )
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        number = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
        with self._context():
            return function.lower(self.replica_shapes, self.feed.shapes, number, number)

    def compile(self, placed: TrainState | None = None) -> None:
        """Compile the training program, ahead of time: there can't be a second compilation.

        Args:
            placed: replicas that lie on the devices already.

        Raises:
            UserError: it would need more memory than there is.
        """
        if self._compiled_train is not None:
            return
        if placed is None:
            self.check_fits()
        compiled = self.lower().compile()
        if memory := compiled.memory_analysis():
            needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
            needed += memory.output_size_in_bytes - memory.alias_size_in_bytes
            needed -= self.feed.nbytes + bytes_per_device(placed)  # allocated already
            batch = f"training with a batch of {self.config.batch_size:,}"
            check_fits(batch, needed, self.mesh.local_devices)
        self._compiled_train = compiled

    def evaluate(
        self, parameters: dict[str, Float[Array, "M ..."]], batches: Any, *, each: bool = False
    ) -> PyTree:
        """Sums of `task.evaluate` over batches (N, B, ...); results begin with an axis of replicas.

        With `each` what is summed up, of each example alone (M, E), by the same program. B must be
        a multiple of `num_shards`.
        """
        with out_of_memory("a batch of the evaluation"), self._context():
            batches = put(batches, self.mesh, PartitionSpec(None, BATCH_AXES))
            sums, by_example = jax.device_get(self._evaluate(parameters, batches))
        return jax.tree.map(lambda a: a.reshape(len(a), -1), by_example) if each else sums

    def models(self, parameters: dict[str, Float[Array, "M ..."]]) -> list:
        """Return a model for each seed.

        A sharded model stays divided over the devices of its only process; of several processes
        each gets all of its arrays.
        """
        seeds = range(self.config.seeds)
        if self.sharded and jax.process_count() == 1:
            shardings = {name: NamedSharding(self.mesh, spec) for name, spec in self.specs.items()}
            take = jax.jit(
                lambda tree, i: {n: a[i] for n, a in tree.items()}, out_shardings=shardings
            )
            return [self._to_model(take(parameters, i)) for i in seeds]
        host = self.on_host(parameters)
        each = [{name: np.array(a[i]) for name, a in host.items()} for i in seeds]
        return [self._to_model(arrays) for arrays in jax.device_put(each)]  # runs no program

    def on_host(self, parameters: dict[str, Array]) -> dict[str, np.ndarray]:
        """The arrays whole: also those that are divided over processes, which all call it."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())

        def gather(array):
            if not (array.is_fully_addressable or array.is_fully_replicated):
                array = jax.jit(lambda a: a, out_shardings=everywhere)(array)
            return np.asarray(array)

        return {name: gather(array) for name, array in parameters.items()}

    def check_fits(self) -> None:
        """Raise a `UserError` if the state, its gradients and the data need more than is free.

        Nothing is compiled or allocated.
        """
        number = f"{self.config.seeds:,} x " if self.config.seeds > 1 else ""
        what = f"training {number}{self.num_parameters:,} parameters"
        replicas = self.replica_shapes
        needed = bytes_per_device(replicas) + bytes_per_device(replicas.parameters)  # the gradients
        check_fits(what, needed, self.mesh.local_devices, replicated=self._resident_bytes)

    def _over_mesh(self, function: Callable, *in_specs: PyTree) -> Callable:
        """`function` of replicas and more, over the mesh: each device has replicas of its own.

        Inside, a replicated model's device has its part of what lies over "data" too; of a sharded
        one arrays are whole, and XLA divides them. `jax.lax.map` over replicas that lie on several
        devices would move them.
        """
        if not self.sharded:
            axes = set(self.mesh.axis_names)
        elif self.mesh.shape["replica"] > 1:
            axes = {"replica"}
            keep = lambda spec: PartitionSpec(*(a if a == "replica" else None for a in spec))  # noqa: E731
            in_specs = jax.tree.map(keep, in_specs)
        else:
            return function
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(PartitionSpec("replica"), *in_specs),
            out_specs=PartitionSpec("replica"),
            axis_names=axes,
            check_vma=False,
        )

    @contextlib.contextmanager
    def _context(self) -> Iterator[None]:
        """Trace products in the run's precision, and sharded models on the mesh (`by_example`)."""
        with contextlib.ExitStack() as stack:
            if self.config.precision == "float32":
                stack.enter_context(jax.default_matmul_precision("float32"))
            if self.sharded:
                stack.enter_context(jax.set_mesh(self.mesh))
            yield

    def _train_here(self, replicas: TrainState, data, start, num_steps):
        step = partial(train_step, self.task, self.config, self._to_model, self._strategy)
        step = over_replicas(step, sequential=self.task.buckets is not None)
        step = jax.jit(step, inline=True)  # traced once, for its shapes and in the loop

        def now(index):
            streamed = isinstance(data, Streamed)
            return jax.tree.map(lambda a: a[:, index], data) if streamed else data

        def body(index, carry):
            replicas, history = carry
            replicas, means = step(replicas, now(index), start + index)
            history = {name: history[name].at[:, index].set(means[name]) for name in history}
            return replicas, history

        _, means = jax.eval_shape(step, replicas, now(0), start)
        history = {
            name: jnp.zeros((*mean.shape, self.feed.most_steps), mean.dtype)
            for name, mean in means.items()
        }
        # A loop with a bound known at run time: `lax.scan` would compile anew for another length.
        return jax.lax.fori_loop(0, num_steps, body, (replicas, history))

    def _evaluate_here(self, parameters, batches):
        strategy = self._strategy

        def evaluate(parameters, batches):
            model = self._to_model(strategy.gather_params(parameters))

            def of_batch(batch):
                sums = self.task.evaluate(model, strategy.constrain_batch(batch))
                each = jax.tree.map(lambda a: a.reshape(len(a), -1).sum(1), sums)
                return jax.tree.map(lambda a: a.sum(0), sums), each

            sums, each = jax.lax.map(of_batch, batches)
            return strategy.psum(jax.tree.map(lambda a: a.sum(0), sums)), strategy.all_gather(each)

        return over_replicas(evaluate)(parameters, batches)


def over_replicas(function: Callable, *, sequential: bool = False) -> Callable:
    """`jax.vmap` over the first argument's leading axis; without its cost for a single replica.

    What is streamed has that axis too. With `sequential` one replica comes after the other: where
    they take different branches, `vmap` would compute every branch for each.
    """

    def mapped(replicas, data, *others):
        if sequential:
            return jax.lax.map(lambda replica: function(replica, data, *others), replicas)
        streamed = isinstance(data, Streamed)
        if jax.tree.leaves(replicas)[0].shape[0] > 1:
            axes = 0, 0 if streamed else None, *(None for _ in others)
            return jax.vmap(function, in_axes=axes)(replicas, data, *others)
        first = partial(jax.tree.map, lambda a: a[0])
        result = function(first(replicas), first(data) if streamed else data, *others)
        return jax.tree.map(lambda a: a[None], result)

    return mapped
