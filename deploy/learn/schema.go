package learn

import _ "embed"

// Schema is the JSON Schema of unit.yaml, for editors. It is made of the types of this package.
//
//go:embed unit.schema.json
var Schema []byte
