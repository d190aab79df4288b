// Package units has the built-in course.
package units

import (
	"embed"
	"io/fs"
)

//go:embed *
var files embed.FS

// Files are the files of the course.
func Files() fs.FS { return files }
