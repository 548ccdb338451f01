"""tf.data service: one process with a dispatcher and a worker, N clients that share one pass over the data, first come, first served.

Variants: `padded` pads each batch of equally many samples to its longest; `buckets` sorts samples by length first, as one does to pad less.
Samples are TFRecords of raw int32, written before the clock starts. Batches travel uncompressed.
"""

import importlib.metadata
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import clients  # noqa: E402

BUCKETS = (128, 256, 512, 1024, 2048, 4096)
POSITIONS = 2 * 8192


def write_records(path, data):
    import tensorflow

    with tensorflow.io.TFRecordWriter(path) as writer:
        for index in range(len(data)):
            writer.write(data[index].tobytes())


def dataset(tf, path, options, variant, samples_a_batch):
    samples = tf.data.TFRecordDataset(path).map(lambda record: tf.io.decode_raw(record, tf.int32), num_parallel_calls=tf.data.AUTOTUNE)
    if variant == "padded":
        return samples.padded_batch(samples_a_batch)
    bounds = [bound for bound in BUCKETS if bound < options.seq_len]
    return samples.bucket_by_sequence_length(lambda sample: tf.shape(sample)[0], [bound + 1 for bound in bounds],
                                             [max(1, POSITIONS // bound) for bound in bounds] + [max(1, POSITIONS // options.seq_len)])


def run_service(path, data, pipe):
    """A process: writes the records, serves until its pipe closes."""
    import tensorflow

    write_records(path, data)
    service = tensorflow.data.experimental.service
    dispatcher = service.DispatchServer()
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1]))
    pipe.send(dispatcher.target)
    try:
        pipe.recv()
    except EOFError:
        pass
    del worker


def main():
    options = clients.Options(sys.argv[1:])
    data = options.data()
    path = os.path.join(options.directory, "records")
    here, there = clients.FORK.Pipe()
    service = clients.FORK.Process(target=run_service, args=(path, data, there))
    service.start()
    target = here.recv()

    def prepare(rank):
        import tensorflow as tf

        def batches(variant, run):
            shared = dataset(tf, path, options, variant, options.samples_a_batch(data)).apply(
                tf.data.experimental.service.distribute(tf.data.experimental.service.ShardingPolicy.OFF, target, job_name=f"{variant}{run}",
                                                         compression=None))
            return (batch for batch in shared.as_numpy_iterator())

        return batches

    try:
        clients.serve(options, prepare, "tensorflow " + importlib.metadata.version("tensorflow-cpu"), servers=[service.pid])
    finally:
        service.kill()


main()
