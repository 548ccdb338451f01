"""The clients of a soak, threads over the stock gRPC package: producers that are cut off and send again, trainers whose worlds change. What the trainers
get is checked batch by batch (contract, bytes) and noted pack by pack, for the comparison with the naive planner at the end."""

import random
import threading

import grpc
import numpy as np

import peer
import recount
from peer import pb

VOCAB = 50_000
Code = grpc.StatusCode
GOES_ON = (Code.UNAVAILABLE, Code.CANCELLED, Code.ABORTED)  # the daemon is away, the call was cut, the generation moved
CALL_S = 7200
PAUSE_S = 0.05


class Wrong(AssertionError):
    """Something is not as the contract says; the soak has failed."""


class Stream:
    """What a stream consists of: sample `seq` is a function of seed, number and seq. Of 97 samples one has a token outside the vocabulary."""

    def __init__(self, feed, name, number, seed, longest, source="", lane=0, count=None):
        self.feed, self.name, self.number, self.seed, self.longest = feed, name, number, seed, longest
        self.source, self.lane, self.count = source, lane, count

    def _draw(self, seq):
        x = (seq * 0x9E3779B97F4A7C15 + self.number * 0xBF58476D1CE4E5B9 + self.seed) & (1 << 64) - 1
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
        x = (x ^ x >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
        return x ^ x >> 31

    def length(self, seq):
        """Tokens; short ones are more frequent."""
        x = self._draw(seq)
        return 1 + (x % self.longest) * (x >> 32 & 0xFFFF) // 0xFFFF

    def bad(self, seq):
        return self._draw(seq) % 97 == 13

    def tokens(self, seq):
        """int32 [length]."""
        x = self._draw(seq)
        tokens = (x % VOCAB + np.arange(self.length(seq), dtype=np.int64) * (1 + x % 7919)) % VOCAB
        if self.bad(seq):
            tokens[-1] = VOCAB + seq
        return tokens.astype(np.int32)


class Client(threading.Thread):
    """Takes turns until `finished()` or an error; what only cuts a turn off (GOES_ON) begins the next one."""

    def __init__(self):
        super().__init__(daemon=True)
        self.error = None

    def run(self):
        while not self.finished() and self.error is None:
            try:
                self.turn()
            except grpc.RpcError as error:
                if error.code() not in GOES_ON:
                    self.error = error
                threading.Event().wait(PAUSE_S)
            except Exception as error:  # told by the soak
                self.error = error
            finally:
                self.let_go()

    def finished(self):
        raise NotImplementedError

    def turn(self):
        """Calls, from the first to the end or the error."""
        raise NotImplementedError

    def let_go(self):
        """Closes the turn's calls, however it ended."""
        raise NotImplementedError


class Producer(Client):
    """Pushes a stream, about `rate` samples a second, until told to finish. After whatever cuts its call off it goes on where the server says, often
    with some samples a second time."""

    def __init__(self, address, stream, seed, rate):
        super().__init__()
        self.address, self.stream, self.rate = address, stream, rate
        self.rng = random.Random(seed)
        self.acked, self.next, self.calls = 0, 0, 0
        self.count = stream.count
        self.finishing = threading.Event()
        self.push, self.done = None, False

    def finished(self):
        return self.done

    def let_go(self):
        push, self.push = self.push, None
        if push:
            push.outgoing.put(None)
            push.call.cancel()
            push.channel.close()

    def cut(self):
        """From another thread: the call ends in the middle of whatever it does."""
        push = self.push
        if push:
            push.call.cancel()

    def turn(self):
        self.calls += 1
        hello = {"source": self.stream.source} if self.stream.source else {}
        push = self.push = peer.Push(self.address, feed=self.stream.feed, stream=self.stream.name, timeout=CALL_S, content_id=b"soak", **hello)
        welcome = push.welcome()
        if welcome.next_seq < self.acked:
            raise Wrong(f"{self.stream.name}: samples up to {self.acked} were acknowledged, the log has {welcome.next_seq}")
        if welcome.stream_ended:
            self.done = True
            return
        push.durable_seq = welcome.next_seq
        if self.rng.random() < 0.5:
            push.next_seq -= min(push.next_seq, self.rng.randrange(80))
        while self.count is None or push.next_seq < self.count:
            if self.count is None and self.finishing.is_set():
                self.count = max(self.next, push.next_seq)
                continue
            self.block(push)
        while push.durable_seq < self.count:
            self.read(push)
        push.end_stream()
        push.close()
        self.done = True

    def block(self, push):
        size = self.rng.randrange(1, 48)
        if self.count is not None:
            size = min(size, self.count - push.next_seq)
        push.block([self.stream.tokens(seq) for seq in range(push.next_seq, push.next_seq + size)], pieces=self.rng.randrange(1, 4))
        self.next = max(self.next, push.next_seq)
        while push.durable_seq + 200 < push.next_seq:
            self.read(push)
        self.note(push)
        self.finishing.wait(size / self.rate)

    def read(self, push):
        push.read()
        self.note(push)

    def note(self, push):
        self.acked = max(self.acked, push.durable_seq)
        for reject in push.rejects:
            for seq in range(reject.seq, reject.seq + reject.count):
                if not self.stream.bad(seq):
                    raise Wrong(f"{self.stream.name} {seq}: refused without a reason: {reject}")
        push.rejects.clear()


class Record:
    """What has been served: each pack of a feed as one line, each step of a job as its packs; the same whenever it is read again."""

    def __init__(self, streams):
        self.streams = {stream.name: stream for stream in streams}
        self.lock = threading.Lock()
        self.packs, self.steps, self.batches, self.again = {}, {}, 0, 0

    def add(self, batch, job, balanced):
        header = batch.header
        recount.check_batch(f"{job} step {header.step}", batch.arrays, header.pad_id)
        rows = self.rows(batch)
        first = (header.micro * header.dp_size + header.dp_rank) * header.rows
        with self.lock:
            self.batches += 1
            packs = self.packs.setdefault(header.feed, {})
            step = self.steps.setdefault(job, {}).setdefault(header.step, {})
            for row, pack in enumerate(header.packs):
                self.same(step, first + row, pack, f"job {job} step {header.step} entry {first + row}")
                if pack >= 0:
                    self.same(packs, pack, rows[row], f"feed {header.feed} pack {pack}")
                if pack >= 0 and not balanced and pack != header.step * header.step_packs + first + row:
                    raise Wrong(f"job {job} step {header.step} entry {first + row} is pack {pack}")

    def same(self, table, key, value, what):
        self.again += key in table
        if table.setdefault(key, value) != value:
            raise Wrong(f"{what} was {table[key]}, and now is {value}")

    def rows(self, batch):
        """The rows' segments as the naive planner prints them; their bytes are compared with what was pushed."""
        header, table = batch.header, batch.header.samples
        column = lambda values: values or [0] * header.n_real_segments  # noqa: E731
        stream, seq, part, epoch, offset = (column(list(c)) for c in (table.stream, table.seq, table.part, table.epoch, table.offset))
        tokens, labels, cu = batch["tokens"].reshape(-1), batch["labels"].reshape(-1), batch["cu_seqlens"]
        rows = [[] for _ in header.packs]
        for segment, index in enumerate(batch["sample_index"]):
            if index < 0:
                continue
            start, length = int(cu[segment]), int(batch["seq_lens"][segment])
            source = self.streams.get(table.streams[stream[index]])
            if source is None or source.feed != header.feed:
                raise Wrong(f"feed {header.feed} serves a sample of {table.streams[stream[index]]}")
            pushed = source.tokens(seq[index])[offset[index]:offset[index] + length]
            if len(pushed) != length or (tokens[start:start + length] != pushed).any():
                raise Wrong(f"{source.name} {seq[index]} from {offset[index]}: not the bytes that were pushed")
            if labels[start] != -100 or (labels[start + 1:start + length] != pushed[1:]).any():
                raise Wrong(f"{source.name} {seq[index]} from {offset[index]}: labels are not the tokens")
            rows[start // header.width].append(f"{source.number}:{seq[index]}:{part[index]}:{epoch[index]}:{offset[index]}:{length}")
        return [" ".join(row) for row in rows]


class Trainer(Client):
    """A job with all its ranks: step after step, with commits; worlds of other shapes, from the last commit or an older one, as it is told."""

    def __init__(self, address, feed, job, shapes, record, seed, commit_every=8, balanced=False, pause_s=0.0):
        super().__init__()
        self.address, self.feed, self.job, self.shapes, self.record = address, feed, job, shapes, record
        self.rng = random.Random(seed)
        self.commit_every, self.balanced, self.pause_s = commit_every, balanced, pause_s
        self.world, self.shape = 0, shapes[0]
        self.next_step, self.commits, self.origin, self.opens = None, [-1], {}, 0
        self.wanted, self.fetches = None, []
        self.steps_done, self.end, self.skipped = 0, None, set()

    def finished(self):
        return self.end is not None

    def turn(self):
        self.begin()
        while self.wanted is None and self.step():
            pass

    def let_go(self):
        fetches, self.fetches = self.fetches, []
        for fetch in fetches:
            fetch.close()

    def cut(self):
        """From another thread: every rank loses its call."""
        for fetch in self.fetches:
            fetch.call.cancel()

    def new_world(self, back):
        """From another thread: another world, another shape; `back` commits back."""
        self.wanted = back
        self.cut()

    def begin(self):
        if self.wanted is not None:
            step = self.commits[-1 - min(self.wanted, len(self.commits) - 1)]
            self.origin = {"from_start": True} if step < 0 else {"resume_step": step}
            self.world, self.shape, self.next_step, self.wanted = self.world + 1, self.rng.choice(self.shapes), step + 1, None
        self.opens += 1
        dp_size, rows, accum = self.shape
        self.opened = [peer.open_job(self.address, feed=self.feed, job=self.job, dp_size=dp_size, rows=rows, accum=accum, dp_rank=rank,
                                     world_token=f"w{self.world}", **self.origin) for rank in range(dp_size)]
        if len({opened.first_step for opened in self.opened}) > 1:
            raise Wrong(f"{self.job}: ranks begin at {[opened.first_step for opened in self.opened]}")
        for gap in self.opened[0].skipped:
            self.skipped.update(range(gap.first, gap.last + 1))
        first = self.opened[0].first_step if self.next_step is None else self.next_step
        while first in self.skipped:
            first += 1
        self.next_step = first
        self.fetches = [peer.Fetch(self.address, self.opened[rank], feed=self.feed, job=self.job, dp_rank=rank, first_step=first, timeout=CALL_S)
                        for rank in range(dp_size)]

    def step(self):
        """Takes a step of every rank; False: the feed has ended, for all of them."""
        batches = [fetch.next() for fetch in self.fetches for _ in range(self.shape[2])]
        if batches[0] is None:
            if any(batches):
                raise Wrong(f"{self.job}: step {self.next_step} exists for some ranks only")
            self.end = self.fetches[0].end.last_step
            if any(fetch.end.last_step != self.end for fetch in self.fetches):
                raise Wrong(f"{self.job}: ranks end at different steps")
            self.commit(self.end)
            return False
        if {batch.header.step for batch in batches} != {self.next_step}:
            raise Wrong(f"{self.job}: step {self.next_step} was due, {[batch.header.step for batch in batches]} came")
        for batch in batches:
            self.record.add(batch, self.job, self.balanced)
        done = self.next_step
        self.steps_done += 1
        self.next_step += 1
        while self.next_step in self.skipped:
            self.next_step += 1
        if done % self.commit_every == 0:
            self.commit(done)
        if self.pause_s:
            threading.Event().wait(self.pause_s)
        return True

    def commit(self, step):
        """The server keeps three commits; a world goes back by one at most, since an answer may have been lost."""
        if step <= self.commits[-1]:
            return
        opened = self.opened[0]
        with peer.channel(self.address) as channel:
            peer.rpc.FeedStub(channel).Commit(pb.CommitRequest(feed=self.feed, job=self.job, log_id=opened.log_id, generation=opened.generation,
                                                               step=step, fetched=step), timeout=60)
        self.commits = self.commits[-1:] + [step]
