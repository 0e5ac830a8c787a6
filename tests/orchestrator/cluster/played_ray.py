"""Ray as `orchestrator.cluster` calls it, played in virtual time from a seed.

The product's threads run one at a time, in an order that the seed draws. Processes die or hang,
answers come late, and whoever awaits something lets the others run.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from functools import partial
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent, greenlet
from ray.exceptions import GetTimeoutError, RayActorError


class Killed(BaseException):
    """The process of a thread was killed."""


class Process:
    """A process, and those that end after it."""

    def __init__(self, parent: Process | None, node: str = "head") -> None:
        self.is_alive, self.hangs, self.node = True, False, node
        self.children: list[Process] = []
        if parent is not None:
            parent.children.append(self)


class World:
    """Virtual time, with the processes, threads and actors that share it.

    Attributes:
        is_silent: True if Ray does not come back from any call of the driver.
        unbounded: What the driver awaited without a deadline.
    """

    def __init__(self, seed: int) -> None:
        self.random, self.now, self.is_silent = Random(seed), 1000.0, False
        self.driver, self.unbounded, self.actors = Process(None), list[str](), list[Actor]()
        self._main, self._threads = getcurrent(), list[Any]()
        self._acts: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self.loop: Any = _VirtualLoop(self)

    def after(self, seconds: float, act: Callable[[], object] = lambda: None) -> None:
        """Schedules an act."""
        heapq.heappush(self._acts, (self.now + seconds, next(self._numbers), act))

    def start(self, process: Process, target: Callable[[], object]) -> Any:
        """Starts a thread of a process."""

        def until_killed() -> None:
            try:
                target()
            except Killed:
                pass
            except RayActorError:  # of an actor that it needs
                self.kill(process)

        thread: Any = greenlet(until_killed, self._main)
        thread.process, thread.until, thread.ready = process, inf, lambda: True
        self._threads.append(thread)
        return thread

    def kill(self, process: Process) -> None:
        """Kills a process; Ray ends within seconds what it started."""
        if process.is_alive:
            process.is_alive = False
            for child in process.children:
                self.after(self.random.uniform(0, 5), partial(self.kill, child))

    @property
    def process(self) -> Process:
        """The process of the thread that runs."""
        thread: Any = getcurrent()
        return thread.process

    def wait(self, ready: Callable[[], bool], seconds: float = inf) -> bool:
        """Lets others run until something is ready or the time is over; returns if it is ready."""
        thread: Any = getcurrent()
        thread.ready, thread.until = ready, self.now + seconds
        self._main.switch()
        return ready()

    def sleep(self, seconds: float = inf) -> None:
        """Lets others run, for ever by default."""
        self.wait(lambda: False, seconds)

    def run(self, target: Callable[[], object], seconds: float) -> None:
        """Runs a thread of the driver to its end, which takes at most so long."""
        main, until = self.start(self.driver, target), self.now + seconds
        while not main.dead and self.now < until:
            self._step()
        for thread in self._threads:
            thread.process.is_alive = False
        while self._threads:
            self._step()
        for call in asyncio.all_tasks(self.loop):
            call.cancel()
        self.pump()
        self.loop.close()
        assert self.now < until, f"the driver is not over after {seconds} s"

    def _step(self) -> None:
        able = [thread for thread in self._threads if self._can_run(thread)]
        if able:
            thread = self.random.choice(able)
            if thread.process.is_alive:
                thread.switch()
            elif thread:  # it has begun
                thread.throw(Killed)
            if thread.dead or not thread:
                self._threads.remove(thread)
        elif self._threads:
            ends = [thread.until for thread in self._threads if not thread.process.hangs]
            self.now = min([*ends, *(time for time, *_ in self._acts[:1])])
            while self._acts and self._acts[0][0] <= self.now:
                heapq.heappop(self._acts)[2]()

    def _can_run(self, thread: Any) -> bool:
        if not thread.process.is_alive:
            return True
        return not thread.process.hangs and (thread.until <= self.now or thread.ready())

    def pump(self) -> None:
        """Runs the actors until all of them wait."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        if self.loop._ready:
            self.pump()


class _VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop of all actors."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def time(self) -> float:
        return self._world.now

    def call_at(self, when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        self._world.after(when - self._world.now, self._world.pump)
        return super().call_at(when, *arguments, **options)


class Answer:
    """The answer of an actor or a task, which may come late."""

    def __init__(self, world: World, process: Process, name: str) -> None:
        self._world, self._process, self.name = world, process, name
        self.at, self.value = inf, None

    def set(self, value: Any) -> None:
        """Answers."""
        random = self._world.random
        late = random.uniform(0.1, 20.0) if random.random() < 0.01 else 0.0
        self.at, self.value = self._world.now + late, value
        self._world.after(late)

    @property
    def came(self) -> bool:
        """True once it has come."""
        return self.at <= self._world.now

    @property
    def is_over(self) -> bool:
        """True once it has come, or never will."""
        return self.came or not self._process.is_alive


class Actor:
    """An actor with asynchronous methods, in a process of its own."""

    def __init__(self, world: World, process: Process, instance: Any) -> None:
        self._world, self.process, self._instance = world, process, instance

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=partial(self._call, name))

    def _call(self, name: str, *arguments: Any) -> Answer:
        answer = Answer(self._world, self.process, name)

        async def call() -> None:
            answer.set(await getattr(self._instance, name)(*arguments))

        if self.process.is_alive and not self.process.hangs:
            self._world.loop.create_task(call())
            self._world.pump()
        return answer


def _ray(world: World) -> SimpleNamespace:
    """Returns the functions of module `ray` that groups and their driver call."""

    def get(answer: Answer, timeout: float | None = None) -> Any:
        if world.process is world.driver and timeout is None:
            world.unbounded.append(answer.name)
        is_over = world.wait(lambda: answer.is_over, inf if timeout is None else timeout)
        if world.process is world.driver:
            world.wait(lambda: not world.is_silent)
        if not is_over:
            raise GetTimeoutError
        if not answer.came:
            raise RayActorError
        return answer.value

    def start(made: Any, *arguments: Any) -> Any:
        process = Process(world.process)
        if isinstance(made, type):
            world.actors.append(actor := Actor(world, process, made(*arguments)))
            return actor
        answer = Answer(world, process, made.__name__)
        world.start(process, lambda: answer.set(made(*arguments)))
        return answer

    def remote(*made: Any, **_: Any) -> Any:
        if not made:
            return remote
        starts = SimpleNamespace(remote=partial(start, made[0]))
        return SimpleNamespace(remote=starts.remote, options=lambda **_: starts)

    return SimpleNamespace(
        get=get,
        kill=lambda actor: world.kill(actor.process),
        remote=remote,
        get_runtime_context=lambda: SimpleNamespace(
            current_actor=SimpleNamespace(process=world.process)
        ),
    )


def played(world: World) -> dict[str, Any]:
    """Returns what takes the place of the modules that wait or call Ray, by name."""
    pickles: list[Any] = []

    def dumps(value: Any) -> bytes:
        pickles.append(value)
        return str(len(pickles) - 1).encode()

    class Event:
        is_over = False

        def set(self) -> None:
            self.is_over = True

        def is_set(self) -> bool:
            return self.is_over

        def wait(self, seconds: float = inf) -> bool:
            return world.wait(self.is_set, seconds)

    class Thread:
        def __init__(self, target: Callable[..., object], args: Any = (), **_: Any) -> None:
            self._target = partial(target, *args)

        def start(self) -> None:
            self._thread = world.start(world.process, self._target)

        def join(self, seconds: float = inf) -> None:
            world.wait(lambda: self._thread.dead, seconds)

    return {
        "ray": _ray(world),
        "time": SimpleNamespace(monotonic=lambda: world.now, time=lambda: world.now),
        "threading": SimpleNamespace(Event=Event, Thread=Thread),
        "cloudpickle": SimpleNamespace(dumps=dumps, loads=lambda one: pickles[int(one)]),
    }
