"""Training under Lightning, whose hooks call the schedule. Where it is not installed, a loop calls the same hooks."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import fxquant as fxq

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    Callback, LightningModule, Trainer = object, nn.Module, None


class QuantizationSchedule(Callback):
    """Qparams stay from one epoch on, statistics of batch norms from another on."""

    def __init__(self, disable_observers, freeze_bn_stats):
        self.schedule = fxq.TrainingSchedule(disable_observers=disable_observers, freeze_bn_stats=freeze_bn_stats)

    def on_train_epoch_start(self, trainer, pl_module):
        self.schedule.start_epoch(pl_module, trainer.current_epoch)


class Classifier(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


def loop(classifier, data, callback, epochs):
    """What a trainer does with them, where there is none."""
    optimizer = classifier.configure_optimizers()
    for epoch in range(epochs):
        classifier.train()
        callback.on_train_epoch_start(SimpleNamespace(current_epoch=epoch), classifier)
        for index, batch in enumerate(data):
            optimizer.zero_grad()
            classifier.training_step(batch, index).backward()
            optimizer.step()


def main():
    torch.manual_seed(0)
    labels = torch.arange(256) % 4
    images = torch.randn(4, 1, 8, 8)[labels] + torch.randn(256, 1, 8, 8) / 2
    data = DataLoader([*zip(images, labels, strict=True)], 32)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    classifier = Classifier(fxq.prepare_qat(model, images[:32]))
    schedule = QuantizationSchedule(disable_observers=2, freeze_bn_stats=3)
    if Trainer is None:
        print("Lightning is not installed: an ordinary loop calls the same hooks")
        loop(classifier, data, schedule, epochs=4)
    else:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
        Trainer(max_epochs=4, accelerator="cpu", callbacks=[schedule], **quiet).fit(classifier, data)
    observing = [name for name, value in classifier.named_buffers() if name.endswith("observer_enabled") and value]
    print(f"{len(observing)} observers go on, batch norm: {type(classifier.net.get_submodule('1')).__name__}")
    fxq.reestimate_batch_norm(classifier.net, data, progress=False)  # of the weights that training has ended with
    int8 = fxq.convert(classifier.net.eval())
    print(f"int8: {(int8(images).argmax(1) == labels).float().mean():.0%} of {len(images)} right")


if __name__ == "__main__":
    main()
