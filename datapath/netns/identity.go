package netns

// Identity is how the processes of a [Namespace] see their machine.
type Identity struct {
	// Hostname is the name in a UTS namespace of their own; empty: that of this process.
	Hostname string
	// Files are contents by absolute path. Processes see them in the place of the machine's files, whether
	// these exist or not. The machine's own files do not change.
	Files map[string]string
}
