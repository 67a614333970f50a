/** A `.json` file of torchatlas -> a Document, as if it had been an `.atlas` file. */

import type { Document } from "./document";
import { DamagedFile } from "./zip";

export function readJson(name: string, _bytes: Uint8Array): Document {
  throw new DamagedFile(`${name}: this viewer reads .atlas files; save the graph as .atlas.`);
}
