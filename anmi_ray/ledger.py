"""The ledger: what runs spent on judges, one file a session, so that a budget holds over kills and resumptions.

`spend/<campaign>/<session>.json`: a campaign is a panel asked about the same comparisons, whatever its budget, and what
it is asked in later rounds; a session is one process that asked. Only the session itself writes its file, again and
again; the last one counts, and what it held back for questions under way counts as spent once nobody is there to settle
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anmi_ray.errors import StoreError
from anmi_ray.judging.purse import Books
from anmi_ray.store import Store


@dataclass(frozen=True)
class Ledger:
    """The books of one campaign under a root; what is written to it belongs to `round`."""

    store: Store
    campaign: str
    round: int = 0

    @property
    def path(self) -> str:
        """The campaign's folder in the store."""
        return f"spend/{self.campaign}"

    def books(self) -> list[Books]:
        """Of every session of all rounds so far, oldest name first. Raises StoreError where one cannot be read."""
        return [self._read(f"{self.path}/{name}") for name in self.store.names(self.path)]

    def write(self, session: str, books: Books) -> None:
        """The state of a session of this round."""
        self.store.publish_json(f"{self.path}/{session}.json", replace(books, round=self.round).to_json())

    def books_of_round(self) -> list[Books]:
        """Of every session of this round so far."""
        return [one for one in self.books() if one.round == self.round]

    def _read(self, path: str) -> Books:
        content = self.store.read_json(path)
        try:
            return Books.from_json(content)
        except (TypeError, KeyError) as error:
            raise StoreError(
                f"not a session's books: {error}", self.store.where(path), "delete it: what it had spent is forgotten"
            ) from None
